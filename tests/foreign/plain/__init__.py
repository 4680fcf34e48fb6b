"""Plain JAX training steps, each odd in its own way. `PLAIN` maps names as `MODELS` does."""

from . import arguments, contrastive, control, images, regression, seq2seq

PLAIN = {
    "mlp": regression.mlp,
    "rnn": regression.rnn,
    "accumulate": regression.accumulate,
    "conv": images.conv,
    "unet": images.unet,
    "encoder_decoder": seq2seq.make,
    "clip": contrastive.make,
    "control_flow": control.make,
    "odd_arguments": arguments.make,
}
