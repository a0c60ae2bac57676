//! Converts plots to PNG, for places that do not show SVG, and to PDF, for papers and print.
//!
//! The fonts are part of the program. So a plot looks the same on a machine without fonts, and the
//! same data gives the same bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb::Database};

/// The font DejaVu Sans, reduced to Latin letters and the other characters that the plots use.
const REGULAR: &[u8] = include_bytes!("fonts/DejaVuSans.ttf");
const BOLD: &[u8] = include_bytes!("fonts/DejaVuSans-Bold.ttf");
/// Factor by which the PNG is larger than the drawing, in each direction. The factor makes plots
/// sharp on high-resolution screens.
const SCALE: f32 = 2.0;
/// Resolution of the PDF, in pixels per inch. At this resolution, the drawing is as wide as on a
/// screen.
const DPI: f32 = 96.0;

/// Creates a PNG file and a PDF file from each of these SVG files, in the directory of the SVG
/// file.
///
/// # Errors
/// Returns an error if a file cannot be read or written; the error names the file.
pub fn draw(plots: &[PathBuf]) -> anyhow::Result<()> {
    let fonts = fonts();
    for plot in plots {
        let svg =
            std::fs::read_to_string(plot).with_context(|| format!("reading {}", plot.display()))?;
        let tree = read_back(&svg, &fonts)?;
        for (extension, bytes) in [("png", png(&tree)?), ("pdf", pdf(&tree)?)] {
            let path = plot.with_extension(extension);
            std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

/// Creates a PNG file and a PDF file from each SVG file in a directory and its subdirectories.
///
/// # Errors
/// Returns an error if a file cannot be read or written; the error names the file.
pub fn draw_all(dir: &Path) -> anyhow::Result<()> {
    let entries = dir
        .read_dir()
        .with_context(|| format!("reading {}", dir.display()))?;
    let mut plots = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", dir.display()))?
            .path();
        if path.is_dir() {
            draw_all(&path)?;
        } else if path.extension().is_some_and(|kind| kind == "svg") {
            plots.push(path);
        }
    }
    draw(&plots)
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
    // The background is opaque, so colours need not be multiplied by an alpha value.
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
    // Letters are converted to outlines, because the order of embedded fonts would differ each
    // time.
    let options = svg2pdf::ConversionOptions {
        embed_text: false,
        ..svg2pdf::ConversionOptions::default()
    };
    let page = svg2pdf::PageOptions { dpi: DPI };
    svg2pdf::to_pdf(tree, options, page)
        .map_err(|error| anyhow::anyhow!("writing a plot as PDF: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_beside_their_plots() {
        let dir = tempfile::tempdir().unwrap();
        let panels = dir.path().join("panels");
        std::fs::create_dir(&panels).unwrap();
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"40\" height=\"20\">\
                   <text x=\"5\" y=\"15\">ms</text></svg>";
        for folder in [dir.path(), &panels] {
            std::fs::write(folder.join("cdf.svg"), svg).unwrap();
        }
        draw_all(dir.path()).unwrap();
        for folder in [dir.path(), &panels] {
            let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
            assert_eq!(read("cdf.pdf")[..5], *b"%PDF-");
            assert_eq!(read("cdf.png")[..4], *b"\x89PNG");
        }
        std::fs::write(dir.path().join("torn.svg"), "<svg").unwrap();
        assert!(draw_all(dir.path()).is_err());
    }
}
