"""What every room uses: errors, files, programs and processes."""
