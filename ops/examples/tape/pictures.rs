//! Pictures of decision boundaries.

use std::error::Error;

use autobwd::Result;
use plotters::prelude::*;

use crate::points::Point;

/// Squares along each side.
const SQUARES: usize = 60;
const FIRST: RGBColor = RGBColor(59, 117, 175);
const SECOND: RGBColor = RGBColor(196, 106, 27);

/// Draws the points over the classes that the network predicts on a grid; `odds` computes the logits.
pub(crate) fn boundary(
    name: &str,
    points: &[Point],
    odds: impl Fn(&[Point]) -> Result<Vec<f64>>,
) -> std::result::Result<String, Box<dyn Error>> {
    let side = 1.0 / SQUARES as f32;
    let square = |i: usize| {
        let at = |i: usize| (i as f32 + 0.5) * side;
        Point { x: at(i % SQUARES), y: at(i / SQUARES), second: false }
    };
    let grid: Vec<Point> = (0..SQUARES * SQUARES).map(square).collect();
    let odds = odds(&grid)?;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (420, 440)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .caption(name, ("sans-serif", 18))
            .build_cartesian_2d(0.0..1.0_f32, 0.0..1.0_f32)?;
        chart.draw_series(grid.iter().zip(odds).map(|(Point { x, y, .. }, odds)| {
            let sure = 1.0 / (1.0 + libm::exp(-odds));
            let color = if sure > 0.5 { SECOND } else { FIRST };
            let half = side / 2.0;
            Rectangle::new(
                [(x - half, y - half), (x + half, y + half)],
                color.mix((sure - 0.5).abs()).filled(),
            )
        }))?;
        chart.draw_series(points.iter().map(|point| {
            let color = if point.second { SECOND } else { FIRST };
            Circle::new((point.x, point.y), 3, color.filled())
        }))?;
        root.present()?;
    }
    Ok(svg)
}
