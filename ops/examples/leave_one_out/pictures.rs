//! The pictures, as SVG.

use std::error::Error;

use plotters::{coord::Shift, prelude::*};

use crate::data::{INK, Image, SIDE};

/// The text of an SVG file.
type Svg = Result<String, Box<dyn Error>>;

const FONT: &str = "sans-serif";
/// Points of the scatter plot at most.
const POINTS: usize = 4000;

/// Exact changes by approximate ones, of evenly spaced pairs.
pub(crate) fn scatter(exact: &[Vec<f64>], approximate: &[Vec<f64>]) -> Svg {
    let pairs: Vec<(f64, f64)> = approximate.concat().into_iter().zip(exact.concat()).collect();
    let most = pairs.iter().fold(1e-9_f64, |most, (x, y)| most.max(x.abs()).max(y.abs()));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (640, 640)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(-most..most, -most..most)?;
        chart
            .configure_mesh()
            .x_desc("change of a test loss by influence functions")
            .y_desc("exact change of the test loss")
            .light_line_style(TRANSPARENT)
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 16))
            .draw()?;
        chart.draw_series(LineSeries::new([(-most, -most), (most, most)], BLACK.mix(0.3)))?;
        let shown = pairs.iter().step_by(pairs.len().div_ceil(POINTS));
        chart.draw_series(shown.map(|pair| Circle::new(*pair, 2, BLUE.mix(0.4).filled())))?;
        root.present()?;
    }
    Ok(svg)
}

/// Size of a pixel of an image.
const DOT: i32 = 8;
const EDGE: i32 = SIDE as i32 * DOT;
/// Distance between images.
const GAP: i32 = 24;
/// Height of a line of text.
const LINE: i32 = 24;
/// Test digits, one a row, and training digits of each.
const ROWS: usize = 8;
const HARMFUL: usize = 6;

/// The test digits that single training digits hurt most, each with the training digits without which its loss is lowest.
pub(crate) fn harmful(training: &[Image], test: &[Image], exact: &[Vec<f64>]) -> Svg {
    let most_harmful = |digit: usize| {
        let mut order: Vec<usize> = (0..training.len()).collect();
        order.sort_by(|a, b| exact[*a][digit].total_cmp(&exact[*b][digit]));
        order.truncate(HARMFUL);
        order
    };
    let mut rows: Vec<(usize, Vec<usize>)> =
        (0..test.len()).map(|digit| (digit, most_harmful(digit))).collect();
    rows.sort_by(|a, b| exact[a.1[0]][a.0].total_cmp(&exact[b.1[0]][b.0]));
    rows.truncate(ROWS);
    let (width, height) = (EDGE + 2 * GAP, EDGE + GAP + LINE);
    let size = ((HARMFUL as i32 + 1) * width + GAP, rows.len() as i32 * height + GAP + 2 * LINE);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let titles = [("test digit", 0), ("training digits without which its loss changes by", width)];
        for (title, left) in titles {
            root.draw(&Text::new(title, (GAP + left, GAP), (FONT, 18)))?;
        }
        for (row, (digit, images)) in rows.iter().enumerate() {
            let top = GAP + LINE + row as i32 * height;
            draw(&root, &test[*digit], (GAP, top), &format!("a {}", test[*digit].label))?;
            for (column, image) in images.iter().enumerate() {
                let corner = (GAP + (column as i32 + 1) * width, top);
                let text = format!("a {}: {:+.3}", training[*image].label, exact[*image][*digit]);
                draw(&root, &training[*image], corner, &text)?;
            }
        }
        root.present()?;
    }
    Ok(svg)
}

/// Draws an image with a text below.
fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    image: &Image,
    (left, top): (i32, i32),
    text: &str,
) -> Result<(), Box<dyn Error>> {
    for (i, pixel) in image.pixels.iter().enumerate() {
        let (x, y) = (left + (i % SIDE) as i32 * DOT, top + (i / SIDE) as i32 * DOT);
        let grey = 255 - (u32::from(*pixel) * 255 / u32::from(INK)) as u8;
        area.draw(&Rectangle::new([(x, y), (x + DOT, y + DOT)], RGBColor(grey, grey, grey).filled()))?;
    }
    area.draw(&Rectangle::new([(left, top), (left + EDGE, top + EDGE)], BLACK.mix(0.3)))?;
    area.draw(&Text::new(text.to_string(), (left, top + EDGE + 6), (FONT, 15)))?;
    Ok(())
}
