"""The rule of the recommendation, on plain numbers.

Facts are what was measured, as a small table without rows. The rule picks a candidate from the
facts under shares and targets. The page holds the same facts, and `rules.js` the same rule, so
that its sliders give the answer that this package gives. A test runs both on random settings.
"""
