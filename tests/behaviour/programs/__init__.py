"""Programs in the manner of the model zoos of 2017 to 2020, rebuilt small: what each needs of an API."""
