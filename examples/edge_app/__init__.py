"""A notebook that learns to tag notes together with other people's notebooks; the notes stay where they are."""
