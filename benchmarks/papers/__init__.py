"""The papers' experiments, the data they are made for, and the tables that come out."""
