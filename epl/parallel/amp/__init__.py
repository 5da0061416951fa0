"""Automatic mixed precision: which ops compute in half precision, and the loss scale."""
