//! Plots as bitmaps, for places that show no SVG.
//!
//! The letters come with the program: a report looks the same on a machine
//! without fonts.

use std::sync::Arc;

use anyhow::Context;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};

/// DejaVu Sans, cut down to the letters of Latin script and the signs in use.
const REGULAR: &[u8] = include_bytes!("fonts/DejaVuSans.ttf");
const BOLD: &[u8] = include_bytes!("fonts/DejaVuSans-Bold.ttf");
/// Pixels of the bitmap for one of the drawing: legible on dense screens.
const SCALE: f32 = 2.0;

/// Draws an SVG file's text.
pub(super) fn render(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut fonts = Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    let options = Options {
        fontdb: Arc::new(fonts),
        font_family: "DejaVu Sans".to_owned(),
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options).context("reading a plot back")?;
    let size = tree.size();
    let (width, height) = (size.width() * SCALE, size.height() * SCALE);
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
        .context("a plot too large to be drawn")?;
    resvg::render(
        &tree,
        Transform::from_scale(SCALE, SCALE),
        &mut pixels.as_mut(),
    );
    pixels.encode_png().context("encoding a plot as PNG")
}
