"""Calibrates a decoder layer block by block: attention, then the MLP. Every product is computed
once, and each module's weights are changed for the inputs that the changed modules before it give.
"""
