"""What a model in a TensorFlow graph costs, for any number of rows and any kind of device."""
