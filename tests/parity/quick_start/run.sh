python local_model.py
