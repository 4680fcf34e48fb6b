"""Hugging Face's Flax GPT-2, BERT, LLaMA and ViT, built from a config: nothing is downloaded."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import transformers as hf

from .training import (
    DROPOUT,
    HEADS,
    HIDDEN,
    MLP,
    SEQ,
    VOCAB,
    arguments,
    cross_entropy,
    dropout_train_step,
    generator,
    materialize,
    next_token_loss,
    noise,
    random_ids,
)

IMAGE, PATCH, CLASSES = 16, 4, 8
MASK = 0  # the token in place of one to be guessed
IGNORE = -100  # the label of a position that the masked-LM loss skips


def gpt2(layers=2, batch=8, abstract=False):
    config = hf.GPT2Config(
        vocab_size=VOCAB,
        n_positions=SEQ,
        n_embd=HIDDEN,
        n_layer=layers,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _causal_lm(hf.FlaxGPT2LMHeadModel, config, batch, abstract)


def llama(layers=2, batch=8, abstract=False):
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=2 * HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=2 * HIDDEN,
        max_position_embeddings=SEQ,
    )
    return _causal_lm(hf.FlaxLlamaForCausalLM, config, batch, abstract)


def bert(layers=2, batch=8, abstract=False):
    config = hf.BertConfig(max_position_embeddings=SEQ, vocab_size=VOCAB, **_encoder(layers))

    rng = generator()
    labels = random_ids(rng, VOCAB, batch, SEQ)
    masked = rng.random(labels.shape) < 0.25
    data = {
        "input_ids": np.where(masked, MASK, labels),
        "attention_mask": np.ones_like(labels),
        "labels": np.where(masked, labels, IGNORE),
    }

    def loss(logits, batch):
        labels = batch["labels"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        mask = labels != IGNORE
        return jnp.sum(losses * mask) / jnp.sum(mask)

    inputs = ("input_ids", "attention_mask")
    return _fine_tune(hf.FlaxBertForMaskedLM, config, inputs, data, loss, abstract)


def vit(layers=2, batch=8, abstract=False):
    config = hf.ViTConfig(
        image_size=IMAGE, patch_size=PATCH, num_labels=CLASSES, **_encoder(layers)
    )

    rng = generator()
    data = {
        "pixel_values": noise(rng, (batch, 3, IMAGE, IMAGE)),
        "labels": random_ids(rng, CLASSES, batch),
    }

    def loss(logits, batch):
        return cross_entropy(logits, batch["labels"])

    model = hf.FlaxViTForImageClassification
    return _fine_tune(model, config, ("pixel_values",), data, loss, abstract)


def _encoder(layers):
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
        "hidden_dropout_prob": DROPOUT,
        "attention_probs_dropout_prob": DROPOUT,
    }


def _causal_lm(model_class, config, batch, abstract):
    data = {"input_ids": random_ids(generator(), VOCAB, batch, SEQ)}

    def loss(logits, batch):
        return next_token_loss(logits, batch["input_ids"])

    return _fine_tune(model_class, config, ("input_ids",), data, loss, abstract)


def _fine_tune(model_class, config, inputs, data, loss, abstract):
    """The step that calls the model on `inputs` of the batch and minimises `loss`."""
    model = model_class(config, _do_init=False)  # `args` hold the parameters

    def loss_fn(params, batch, key):
        kwargs = {name: batch[name] for name in inputs}
        outputs = model(**kwargs, params=params, dropout_rng=key, train=True)
        return loss(outputs.logits, batch)

    def init(key):
        return model.init_weights(key, model.input_shape)

    params = materialize(init, jax.random.key(0), abstract=abstract)
    return dropout_train_step(loss_fn), arguments(params, data, with_key=True, abstract=abstract)
