"""What fused recurrences are made of: stages of flash-linear-attention, and the kernels between.

Importing this needs the extra `hybrid`; `vla_nav.models.hybrid.fused.stages` says so where it is
not there.
"""

from fla.modules.causal_conv1d import causal_conv1d
from fla.modules.norm.l2norm import l2norm_bwd, l2norm_fwd
from fla.ops.common.chunk_o import chunk_bwd_dqkwg, chunk_bwd_dv, chunk_bwd_dv_local, chunk_fwd_o
from fla.ops.gated_delta_rule.chunk_fwd import chunk_gated_delta_rule_fwd_intra
from fla.ops.gated_delta_rule.wy_fast import prepare_wy_repr_bwd, recompute_w_u_fwd
from fla.ops.utils import chunk_local_cumsum
from fla.ops.utils.constant import RCP_LN2

from vla_nav.models.hybrid.state_kernels import (
    initial_gradients,
    pass_gradients_along,
    pass_states_along,
)

__all__ = [
    "RCP_LN2",
    "causal_conv1d",
    "chunk_bwd_dqkwg",
    "chunk_bwd_dv",
    "chunk_bwd_dv_local",
    "chunk_fwd_o",
    "chunk_gated_delta_rule_fwd_intra",
    "chunk_local_cumsum",
    "initial_gradients",
    "l2norm_bwd",
    "l2norm_fwd",
    "pass_gradients_along",
    "pass_states_along",
    "prepare_wy_repr_bwd",
    "recompute_w_u_fwd",
]
