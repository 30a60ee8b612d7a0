//! The results as a chart: times of each library relative to autobwd.

use std::collections::BTreeSet;

use autobwd_benches::BenchResult;
use plotters::{coord::Shift, prelude::*};

use crate::{LIBRARIES, Results, WORKLOADS, median_of};

const FONT: &str = "sans-serif";
const WIDTH: u32 = 1000;
const HEIGHT: u32 = 320;
/// Width of the names of the libraries, on the right.
const NAMES: u32 = 140;
const COLORS: [RGBColor; LIBRARIES.len()] = [
    RGBColor(59, 117, 175),
    RGBColor(221, 132, 82),
    RGBColor(85, 168, 104),
    RGBColor(150, 205, 165),
    RGBColor(196, 78, 82),
    RGBColor(129, 114, 179),
    RGBColor(140, 140, 140),
];

/// One picture for each number of threads, one below the other.
pub(crate) fn of(results: &Results) -> BenchResult<String> {
    let threads: BTreeSet<_> = results.keys().map(|key| key.0).collect();
    let mut svg = String::new();
    {
        let size = (WIDTH, HEIGHT * threads.len() as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, threads) in root.split_evenly((threads.len(), 1)).iter().zip(threads) {
            bars(area, results, threads)?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Bars of the workloads, grouped by workload, with a legend.
fn bars(area: &DrawingArea<SVGBackend<'_>, Shift>, results: &Results, threads: usize) -> BenchResult<()> {
    let mut shares = vec![];
    for (place, workload) in WORKLOADS.into_iter().enumerate() {
        let of = |library| median_of(results, threads, workload, library);
        let Some(ours) = of(LIBRARIES[0]) else { continue };
        for (bar, library) in LIBRARIES.into_iter().enumerate() {
            shares.extend(of(library).map(|ms| (place, bar, ms / ours)));
        }
    }
    let (least, most) = shares.iter().fold((0.5_f64, 2.0_f64), |(l, m), (.., s)| (l.min(*s), m.max(*s)));
    let title = format!(
        "time of a step relative to autobwd, {threads} thread{}",
        if threads == 1 { "" } else { "s" }
    );
    let (area, names) = area.split_horizontally(WIDTH - NAMES);
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(title, (FONT, 18))
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..WORKLOADS.len() as f64 - 0.5, (least * 0.8..most * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(WORKLOADS.len())
        .x_label_formatter(&|place| name(*place).into())
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&|share| format!("{share}"))
        .label_style((FONT, 14))
        .draw()?;
    let width = 0.8 / LIBRARIES.len() as f64;
    for (place, bar, share) in shares {
        let left = place as f64 - 0.4 + bar as f64 * width;
        let corners = [(left, least * 0.8), (left + width * 0.9, share)];
        chart.draw_series([Rectangle::new(corners, COLORS[bar].filled())])?;
    }
    for (bar, library) in LIBRARIES.into_iter().enumerate() {
        let y = 56 + 20 * bar as i32;
        names.draw(&Rectangle::new([(0, y), (10, y + 10)], COLORS[bar].filled()))?;
        names.draw(&Text::new(library, (16, y - 1), (FONT, 14)))?;
    }
    Ok(())
}

/// The workload at a position of the axis, if any.
fn name(place: f64) -> &'static str {
    let whole = (place - place.round()).abs() < 1e-9 && place > -0.5;
    WORKLOADS.get(place.round() as usize).filter(|_| whole).map_or("", |workload| workload.name())
}
