"""Image classification: ResNet on folders of images or TFRecord files."""
