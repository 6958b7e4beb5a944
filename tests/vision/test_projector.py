"""The projector maps any cached dtype to the backbone's width."""

import pytest
import torch

from vla_nav.vision.projector import Projector


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_features_of_any_dtype_come_out_in_the_projectors(dtype):
    projector = Projector(12, 32, 7)
    out = projector(torch.randn(3, 5, 12).to(dtype))
    assert out.shape == (3, 5, 7)
    assert out.dtype == torch.float32


def test_every_token_is_projected_alone_and_alike():
    torch.manual_seed(0)
    projector = Projector(6, 16, 4).double()
    features = torch.randn(2, 5, 6, dtype=torch.float64)
    permuted = features[:, [3, 0, 4, 1, 2]]
    torch.testing.assert_close(projector(permuted), projector(features)[:, [3, 0, 4, 1, 2]])


def test_scale_and_offset_of_the_features_do_not_matter():
    torch.manual_seed(0)
    projector = Projector(32, 16, 4).double()
    features = torch.randn(5, 32, dtype=torch.float64)
    # the layer norm's epsilon of 1e-5 is all that differs
    torch.testing.assert_close(
        projector(features), projector(100 * features + 7), rtol=1e-3, atol=1e-4
    )


def test_every_weight_gets_a_gradient():
    projector = Projector(6, 16, 4)
    projector(torch.randn(9, 6)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in projector.parameters())
