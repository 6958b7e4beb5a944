"""vla_nav: exact and fast training of vision-language-action navigation policies on whole episodes.

Data flow is dependency order: episodes -> actions -> tree -> (vision, attention, losses,
simulators) -> models -> training | evaluation -> commands. `docs/architecture.md` has the map.
"""

__version__ = "0.1.0"
