"""The names of the environment variables by which the workers of a job find and recognize each other.

The launcher or the user sets them, the workers read them, and the configuration knows that they are none of its keys.
docs/launcher.md explains them.
"""

SECRET = "EPL_JOB_SECRET"
SECRET_FILE = "EPL_JOB_SECRET_FILE"
JOB_NAME = "EPL_JOB_ID"
JOB_HOSTS = "EPL_JOB_HOSTS"
JOB_PORT = "EPL_JOB_PORT"
