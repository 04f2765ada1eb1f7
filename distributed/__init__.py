"""The process group: joining it, and what ranks do together."""
