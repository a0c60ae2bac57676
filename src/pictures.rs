//! Conversion of plots from SVG to PNG and PDF on request (`--pictures`). The new files are written
//! next to the SVG files.

use std::path::Path;

use clap::Args;

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Pictures {
    /// Draws each plot as PNG and PDF, too: in programs built with `--features pictures`
    #[arg(long)]
    pictures: bool,
}

impl Pictures {
    /// Returns an error if PNG and PDF files are requested and this program cannot draw them.
    pub fn check(self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.pictures || cfg!(feature = "pictures"),
            "--pictures: this program was built without them; build it with `cargo build --release \
             --features pictures`"
        );
        Ok(())
    }

    /// Converts all plots in `dir` to PNG and PDF, if the user requested these formats. Plots in
    /// subdirectories are converted, too.
    pub fn draw(self, dir: &Path) -> anyhow::Result<()> {
        self.check()?;
        #[cfg(feature = "pictures")]
        if self.pictures && dir.exists() {
            return leasehold_geo_deploy::pictures::draw_all(dir);
        }
        _ = dir;
        Ok(())
    }
}
