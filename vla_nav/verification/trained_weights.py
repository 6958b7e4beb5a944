"""Weights of what is verified: those of a trained policy where one is given, else random ones.

A part that is shrunk in layers or width cannot have them; the report says so.
"""

from __future__ import annotations

from vla_nav.episodes.bodies import embodiment_differences
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.models.lora import draw_adapters
from vla_nav.models.vla import VLA
from vla_nav.verification.recipe import VerifyRecipe
from vla_nav.vision.encoder import TimmEncoder

_ENCODER = "encoder."


def encoder_of(recipe: VerifyRecipe) -> TimmEncoder:
    """The encoder of `recipe`."""
    encoder = TimmEncoder(**recipe.encoder)
    if recipe.trained is not None:
        own = {k.removeprefix(_ENCODER): v for k, v in recipe.trained.items() if k[:8] == _ENCODER}
        encoder.load_state_dict(own)
    return encoder


def give_weights(model: VLA, recipe: VerifyRecipe, *, is_whole: bool = True) -> None:
    """Copy the trained weights into a model of their shapes (is_whole), or draw what starts as
    zero: adapters that do nothing yet would prove little."""
    if recipe.trained is not None and is_whole:
        model.load_state_dict(recipe.trained)
    else:
        draw_adapters(model, seed=recipe.seed)


def require_body(recipe: VerifyRecipe, recorded: Embodiment) -> None:
    """Raise `UserError` where a policy's body is not that of the recorded data."""
    if recipe.embodiment is None:
        return
    found = embodiment_differences(recipe.embodiment, recorded)
    if found:
        raise UserError(
            f"the policy was trained under other conditions than {recipe.data_path} was recorded "
            f"(trained != recorded): {'; '.join(found)}; verify it on its own data"
        )
