# SPDX-License-Identifier: PostgreSQL
"""Fuzz targets, and what runs them."""
