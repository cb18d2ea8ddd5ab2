"""JSON Schema: normalised to shapes, and the rules over bytes that follow from them."""
