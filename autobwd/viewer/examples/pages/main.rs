//! Writes pages of several training programs, and what they must show (`expected.json`), and reports of runs
//! (`report-*.html`) into a folder:
//!
//! ```text
//! cargo run -p autobwd-viewer --example pages -- DIR
//! ```

mod models;
mod runs;

use std::{collections::BTreeMap, env, error::Error, fs, path::Path, time::Instant};

use autobwd::program::{Origin, diff};
use autobwd::{DType, Dims, OpDesc, Program, VarDesc, explain, viewer::Page};
use autobwd_ops::activation::Tanh;
use serde_json::json;

use models::{Model, chain, digits, gpt, lstm};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args().nth(1).ok_or("name a folder for the pages")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let (old, new) = (digits([128, 64], 0.004)?, digits([128, 96], 0.004)?);
    let (large, hostile, small) = (chain(4_990)?, hostile(), gpt(4)?);
    let with_plan = |name: &str, model: &Model| -> Result<_, Box<dyn Error>> {
        Ok((
            name.to_string(),
            Page::new(&model.program).title(name).feeds(&model.feeds).to_html()?,
            model.program.clone(),
        ))
    };
    let (lstm, many) = (lstm()?, gpt(12)?);
    let mut start = Instant::now();
    let mut pages = vec![];
    for (name, model) in [
        ("digits", &old),
        ("gpt", &small),
        ("gpt of 12 layers", &many),
        ("lstm", &lstm),
        ("10,000 operators", &large),
    ] {
        pages.push(with_plan(name, model)?);
        eprintln!("{name}: {} operators, {:.2?}", count(&model.program), start.elapsed());
        start = Instant::now();
    }
    let compared = Page::new(&new.program).title("differences").compare_with(&small.program);
    pages.push(("unlike".into(), compared.to_html()?, new.program.clone()));
    let compared = Page::new(&new.program).title("differences").feeds(&new.feeds).compare_with(&old.program);
    pages.push(("differences".into(), compared.to_html()?, new.program.clone()));
    pages.push((
        "hostile".into(),
        Page::new(&hostile).title("</title><script>alert(1)</script>").to_html()?,
        hostile,
    ));
    pages.push(("empty".into(), Page::new(&Program::new()).to_html()?, Program::new()));
    let mut expected = BTreeMap::new();
    for (name, html, program) in &pages {
        let file = name.replace([' ', ','], "-");
        fs::write(folder.join(format!("{file}.html")), html)?;
        let ops = program.root().ops.iter().filter(|op| op.origin != Origin::Model);
        let gradients: Vec<&str> = ops.flat_map(OpDesc::writes).map(|v| program.name(v)).collect();
        // Large pages have the first stories only.
        let apart = if count(program) < 2000 { gradients.len() / 40 + 1 } else { 1 };
        let mut stories = BTreeMap::new();
        for name in gradients.into_iter().step_by(apart).take(40) {
            stories.insert(name, explain(program, name)?);
        }
        expected
            .insert(file, json!({ "operators": count(program), "bytes": html.len(), "stories": stories }));
    }
    expected.get_mut("differences").ok_or("no page")?["changes"] =
        json!(diff(&old.program, &new.program).to_string());
    for (name, html) in runs::reports()? {
        fs::write(folder.join(format!("report-{name}.html")), html)?;
    }
    fs::write(folder.join("expected.json"), serde_json::to_string_pretty(&expected)?)?;
    Ok(())
}

fn count(program: &Program) -> usize {
    program.blocks().iter().map(|block| block.ops.len()).sum()
}

/// A program whose names try to leave their places.
fn hostile() -> Program {
    let mut program = Program::new();
    let names = [
        "</script><script>alert(1)</script>",
        "\"'`&<b>",
        "<!--",
        "a\nb\u{0}\u{7f}",
        "\u{202e}txet\u{2028}",
        "{{script}}",
    ];
    let vars = names.map(|name| program.var(name));
    let root = program.root_mut();
    for var in vars {
        root.vars.insert(var, VarDesc::new(DType::F32, Dims::from([4])));
    }
    for pair in vars.windows(2) {
        root.ops.push(Tanh { x: pair[0], out: pair[1] }.into());
    }
    program
}
