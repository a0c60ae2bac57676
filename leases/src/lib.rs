//! Who may read locally, and until when.
