"""The projector: vision features to the width of the backbone's token embeddings.

    LayerNorm(D) -> Linear(D, hidden) -> GELU -> Linear(hidden, out)

One module for full and pooled tokens alike: both are means of the same feature channels.
"""

from __future__ import annotations

from torch import Tensor, nn


class Projector(nn.Module):
    """A two-layer perceptron behind a layer norm. Features of any cached dtype are accepted."""

    def __init__(self, feature_dim: int, hidden: int, out_dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(feature_dim)
        self.expand = nn.Linear(feature_dim, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, out_dim)

    def forward(self, features: Tensor) -> Tensor:
        """(..., feature_dim) of any float dtype -> (..., out_dim) in the projector's dtype."""
        features = features.to(self.norm.weight.dtype)
        return self.contract(self.activation(self.expand(self.norm(features))))
