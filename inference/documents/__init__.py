"""Reads the text of PDF files for the plugin ``file-parser``, in processes of their own."""
