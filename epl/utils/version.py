"""The version of EPL, which `setup.py` reads from here, and what installs the TensorFlow that it needs."""

VERSION = "0.6.0"

INSTALL_PROTOBUF = 'pip install "protobuf<3.21"'
# TensorFlow 1.15 names no upper limits itself, and newer packages break it.
INSTALL_TENSORFLOW = 'pip install "tensorflow==1.15.5" "protobuf<3.21" "numpy<1.19"'
INSTALL_TENSORFLOW_2_15 = 'pip install "tensorflow==2.15.1"'
# From 2.16 on the Keras of graphs is a package of its own.
INSTALL_TENSORFLOW_2 = 'pip install "tensorflow==2.21.0" "tf_keras==2.21.0"'
