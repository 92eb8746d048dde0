"""The fast path for single-row decode on Hopper: one persistent Gluon kernel that streams the weights without a pause."""
