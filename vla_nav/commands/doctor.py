"""Check a data set (data.path=...) or, without one, this installation; exit 1 on an error."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import plain
    from vla_nav.errors import UserError
    from vla_nav.files import write_json

    try:
        from vla_nav.evaluation.setup import embodiment_of
        from vla_nav.simulators.opening import SimulatorSetup
        from vla_nav.verification.data_doctor import examine
        from vla_nav.verification.doctor_report import data_text, installation_text
        from vla_nav.verification.habitat_installation import require_habitat
        from vla_nav.verification.installation import examine_installation
        from vla_nav.verification.reachability import Reachability
    except ImportError as error:
        raise UserError(
            f"this installation is not complete: {error}; pip install the project again"
        ) from None
    simulators, doctor = plain(cfg.simulators), plain(cfg.doctor)
    target = Path(cfg.paths.output_dir) / "doctor.json"
    if cfg.data.path is None:
        probes = examine_installation(
            body=embodiment_of(simulators), simulators=simulators, output_dir=cfg.paths.output_dir
        )
        value = {"installation": [probe.as_json() for probe in probes]}
        text = installation_text(probes)
        num_errors = sum(probe.severity == "error" for probe in probes)
    else:
        body, setup = embodiment_of(simulators), SimulatorSetup.of(simulators)
        if setup.backend == "habitat" and doctor["reachability"]["num_scenes"]:
            require_habitat(simulators)
        report = examine(
            plain(cfg.data),
            compare=doctor["compare"],
            scenes=doctor["scenes"],
            reachability=Reachability(body, setup, **doctor["reachability"]),
        )
        value, text, num_errors = report.as_json(), data_text(report), report.num_errors
    write_json(target, value)
    print(text)
    print(f"written to {target}")
    return 1 if num_errors else 0
