"""The algorithms: each module of this folder is one, behind `base.step.Step`, named `STEP`.

The folder is searched (`conf.schema.steps`), so a new algorithm is one new file. Its top level
imports nothing heavy, since every command reads it for the options; functions import the rest.
"""
