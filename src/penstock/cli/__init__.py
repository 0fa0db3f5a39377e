"""The command ``penstock``: one module for each noun, loaded when one of its commands runs."""
