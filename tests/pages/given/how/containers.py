# SPDX-License-Identifier: PostgreSQL
import pathlib

# In the reader's clone. make test-packages builds the images, and sends this request to all of compose.yaml.
FILES = {"packaging/images/secrets": pathlib.Path("packaging/images/secrets")}
SHOWN = {"for i in 1 2; do curl": "no containers run here: tests/packages/test_images_whole.py sends it"}
