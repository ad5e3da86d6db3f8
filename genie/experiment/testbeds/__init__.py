"""Networks that an experiment runs on, and how they are taken down whatever happens."""
