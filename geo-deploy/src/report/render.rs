//! Plots as files: SVG, PNG for places that show no SVG, PDF for papers and print.
//!
//! The letters come with the program: a plot looks the same on a machine without fonts,
//! and the same data gives the same bytes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};

use super::figures::Figure;

/// DejaVu Sans, cut down to the letters of Latin script and the signs in use.
const REGULAR: &[u8] = include_bytes!("fonts/DejaVuSans.ttf");
const BOLD: &[u8] = include_bytes!("fonts/DejaVuSans-Bold.ttf");
/// Pixels of the bitmap for one of the drawing: legible on dense screens.
const SCALE: f32 = 2.0;
/// Dots per inch of the PDF: a pixel of the drawing is as wide as on a screen.
const DPI: f32 = 96.0;

/// Writes figures below `dir` as `NAME.svg`, `NAME.png` and `NAME.pdf`.
///
/// # Errors
/// If a file cannot be written; the error names it.
pub(super) fn write(figures: &[Figure], dir: &Path) -> anyhow::Result<()> {
    let fonts = fonts();
    for figure in figures {
        let svg = figure.svg.file();
        let tree = read_back(&svg, &fonts)?;
        let files = [
            ("svg", svg.into_bytes()),
            ("png", png(&tree)?),
            ("pdf", pdf(&tree)?),
        ];
        for (extension, bytes) in files {
            let path = dir.join(format!("{}.{extension}", figure.name));
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&path, bytes))
                .with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

fn fonts() -> Arc<Database> {
    let mut fonts = Database::new();
    fonts.load_font_data(REGULAR.to_vec());
    fonts.load_font_data(BOLD.to_vec());
    Arc::new(fonts)
}

fn read_back(svg: &str, fonts: &Arc<Database>) -> anyhow::Result<Tree> {
    let options = Options {
        fontdb: fonts.clone(),
        font_family: "DejaVu Sans".to_owned(),
        ..Options::default()
    };
    Tree::from_str(svg, &options).context("reading a plot back")
}

fn png(tree: &Tree) -> anyhow::Result<Vec<u8>> {
    let size = tree.size();
    let (width, height) = (size.width() * SCALE, size.height() * SCALE);
    let mut pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32)
        .context("a plot too large to be drawn")?;
    let scale = Transform::from_scale(SCALE, SCALE);
    resvg::render(tree, scale, &mut pixels.as_mut());
    // The ground is opaque, so the colours are not multiplied with anything.
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, pixels.width(), pixels.height());
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Best);
    encoder.set_adaptive_filter(png::AdaptiveFilterType::Adaptive);
    let mut writer = encoder.write_header().context("encoding a plot as PNG")?;
    writer
        .write_image_data(pixels.data())
        .context("encoding a plot as PNG")?;
    writer.finish().context("encoding a plot as PNG")?;
    Ok(bytes)
}

fn pdf(tree: &Tree) -> anyhow::Result<Vec<u8>> {
    // Letters as outlines: fonts would be embedded in another order each time.
    let options = svg2pdf::ConversionOptions {
        embed_text: false,
        ..svg2pdf::ConversionOptions::default()
    };
    let page = svg2pdf::PageOptions { dpi: DPI };
    svg2pdf::to_pdf(tree, options, page)
        .map_err(|error| anyhow::anyhow!("writing a plot as PDF: {error}"))
}
