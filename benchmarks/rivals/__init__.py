"""The programs cavs is measured against, written in PyTorch."""
