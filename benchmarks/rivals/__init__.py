"""The programs cavs is measured against, most of them written in PyTorch."""
