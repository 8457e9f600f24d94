"""Block-wise weight quantisation, in the layout of ``MatMulNBits``."""

from edgespec.export.quantise.blockwise import Quantised, dequantise, quantise

__all__ = ["Quantised", "dequantise", "quantise"]
