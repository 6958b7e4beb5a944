"""What `vla-nav train` refuses of its configuration before anything is built."""

import re

import pytest

from vla_nav.commands import train
from vla_nav.commands.compose import compose_config
from vla_nav.errors import UserError


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("callbacks.checkpoint=null", "callbacks.checkpoint=null: a run without checkpoints"),
        ("callbacks.closed_loop=true", "callbacks.closed_loop=True: its keys come with"),
        ("callbacks.closed_loop={}", "callbacks.closed_loop={}: its keys come with"),
    ],
)
def test_callbacks_that_are_none_are_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        train.divided(compose_config("train", [override]).callbacks)
    for name in ("default", "closed_loop"):
        composed = compose_config("train", ["data.path=x", f"callbacks={name}"]).callbacks
        assert (train.divided(composed)[1] is None) == (name == "default")


@pytest.mark.parametrize(
    ("override", "own"),
    [
        ("+trainer.max_steps=5", "training.budget.max_steps"),
        ("+trainer.accumulate_grad_batches=2", "training.accumulate"),
        ("+trainer.gradient_clip_val=1.0", "training.optimiser.clip_norm"),
        ("+trainer.val_check_interval=10", "training.validation.every_steps"),
    ],
)
def test_a_key_of_the_trainer_that_the_run_sets_itself_is_refused(override: str, own: str) -> None:
    composed = compose_config("train", ["data.path=x", override])
    with pytest.raises(UserError, match=re.escape(f"set {own} instead")):
        train.main(composed)
    train.require_trainer_keys(compose_config("train", ["data.path=x"]).trainer)
