//! The pictures: learning curve and misclassified images, as SVG.

use std::error::Error;

use plotters::{coord::Shift, prelude::*};

use crate::{
    data::{INK, Image, SIDE},
    training::Epoch,
};

/// The text of an SVG file.
type Svg = Result<String, Box<dyn Error>>;
/// The area to draw on.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const FONT: &str = "sans-serif";

/// Loss and test accuracy by epoch, one above the other.
pub(crate) fn learning_curve(epochs: &[Epoch]) -> Svg {
    let losses: Vec<f64> = epochs.iter().map(|e| e.loss).collect();
    let accuracies: Vec<f64> = epochs.iter().map(|e| 100.0 * e.accuracy).collect();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (720, 640)).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(320);
        curve(&above, "training loss", &losses, &BLUE)?;
        curve(&below, "test accuracy in %", &accuracies, &RED)?;
        root.present()?;
    }
    Ok(svg)
}

/// One curve, a value for each epoch.
fn curve(area: &Area, name: &str, values: &[f64], color: &RGBColor) -> Result<(), Box<dyn Error>> {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    let room = 0.05 * (high - low).max(1e-3);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(1.0..values.len() as f64, low - room..high + room)?;
    chart
        .configure_mesh()
        .x_desc("epoch")
        .y_desc(name)
        .x_label_formatter(&|epoch| format!("{epoch:.0}"))
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 16))
        .draw()?;
    let points = (1..).map(f64::from).zip(values.iter().copied());
    chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
    Ok(())
}

/// Size of an image pixel in the picture.
const DOT: i32 = 12;
/// Size of an image in the picture.
const EDGE: i32 = SIDE as i32 * DOT;
/// Distance between images.
const GAP: i32 = 24;
/// Height of a line of text.
const LINE: i32 = 28;
/// Images in a row.
const COLUMNS: usize = 6;

/// Misclassified images, each with both digits.
pub(crate) fn misread(images: &[Image], answers: &[i64]) -> Svg {
    let wrong: Vec<_> =
        images.iter().zip(answers).filter(|(image, answer)| image.label != **answer).collect();
    let (width, height) = (EDGE + GAP, EDGE + GAP + LINE);
    let rows = wrong.len().div_ceil(COLUMNS);
    let size = (COLUMNS as i32 * width + GAP, rows as i32 * height + GAP + LINE);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("{} of {} test images misread", wrong.len(), images.len());
        root.draw(&Text::new(title, (GAP, GAP), (FONT, 20)))?;
        for (i, (image, answer)) in wrong.into_iter().enumerate() {
            let (row, column) = ((i / COLUMNS) as i32, (i % COLUMNS) as i32);
            let corner = (GAP + column * width, GAP + LINE + row * height);
            draw_image(&root, image, corner)?;
            let text = format!("{} read as {answer}", image.label);
            let below = (corner.0, corner.1 + EDGE + 8);
            root.draw(&Text::new(text, below, (FONT, 16)))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Draws a framed image with its upper left corner there.
fn draw_image(area: &Area, image: &Image, (left, top): (i32, i32)) -> Result<(), Box<dyn Error>> {
    for (i, pixel) in image.pixels.iter().enumerate() {
        let (x, y) = (left + (i % SIDE) as i32 * DOT, top + (i / SIDE) as i32 * DOT);
        let grey = 255 - (u32::from(*pixel) * 255 / u32::from(INK)) as u8;
        let dot = [(x, y), (x + DOT, y + DOT)];
        area.draw(&Rectangle::new(dot, RGBColor(grey, grey, grey).filled()))?;
    }
    area.draw(&Rectangle::new([(left, top), (left + EDGE, top + EDGE)], BLACK.mix(0.3)))?;
    Ok(())
}
