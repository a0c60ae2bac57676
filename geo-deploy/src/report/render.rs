//! Writes plots to files.

use std::path::Path;

use anyhow::Context;

use super::figures::Figure;

/// Writes figures into `dir` as `NAME.svg`.
///
/// # Errors
/// Returns an error if a file cannot be written; the error names the file.
pub(super) fn write(figures: &[Figure], dir: &Path) -> anyhow::Result<()> {
    for figure in figures {
        let path = dir.join(format!("{}.svg", figure.name));
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, figure.svg.file()))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
