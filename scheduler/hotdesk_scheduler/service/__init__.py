"""Joins the parts: observe -> review -> decide -> verify -> apply. The only part that owns a clock."""
