"""The primitives that contract, and which operand plays which part."""

# primitive -> (activation-like operand, the other operand)
OPERANDS = {"dot_general": (0, 1), "conv_general_dilated": (0, 1), "gather": (1, 0)}
