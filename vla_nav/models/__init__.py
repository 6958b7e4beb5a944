"""Backbones from transformers, the prompt, the VLA, and the policy that runs it.

Modules are imported by name (`vla_nav.models.policy`): transformers takes a second to import, and
loader workers need `prompt` alone.
"""
