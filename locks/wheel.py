"""What hatchling does differently for a wheel: our packages go into one package, `quantline`.

An editable install puts the repository itself on Python's path, where quantline.py lies beside the
packages. A copy of it in site-packages would come first there, and find none of them.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class QuantlineHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is hatchling's word for the kind of wheel: standard or editable."""
        if version == "standard":
            build_data["force_include"] |= {
                f"{self.root}/quantline.py": "quantline/__init__.py",
                f"{self.root}/locks/wheel_main.py": "quantline/__main__.py",
            }
