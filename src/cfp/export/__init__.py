"""Plans for programs that do not have CFP: as rules by path, and as a snippet of plain JAX."""

from cfp.export.rules import Rules, find_rules, match_rules, slash_path
from cfp.export.snippet import make_snippet, rules_text

__all__ = ["Rules", "find_rules", "make_snippet", "match_rules", "rules_text", "slash_path"]
