"""The processes of ``serve``: the supervisor and the HTTP server of each worker."""
