"""The native forms: C sources, and what calls them through `lmlang.kernels.native`."""
