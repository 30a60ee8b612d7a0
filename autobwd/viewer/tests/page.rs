//! Pages as text: their data, their policy, and what they refuse. `tests/viewer` looks at them in a browser.

#[path = "../examples/pages/models.rs"]
mod models;
#[path = "page/report.rs"]
mod report;
#[path = "../examples/pages/runs.rs"]
mod runs;

use autobwd::{
    Attr, BlockId, DType, Dims, ErrorKind, Meta, OpDesc, Program, Result, VarDesc, explain,
    prelude::ToHtml,
    program::{Name, Site},
    viewer::Page,
};
use serde_json::Value;

use models::{chain, digits, gpt, lstm};

/// The text between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap();
    rest.split_once(end).unwrap().0
}

fn data(html: &str) -> Value {
    serde_json::from_str(between(html, "<script type=\"application/json\" id=\"data\">", "</script>"))
        .unwrap()
}

/// The numbers of all operators in a tree of rows, and the texts of its headings.
fn walk(rows: &Value, ops: &mut Vec<u64>, headings: &mut Vec<String>) {
    for row in rows.as_array().unwrap() {
        headings.extend(row["h"].as_str().map(String::from));
        ops.extend(row["o"].as_u64());
        ops.extend(row["r"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        if row["c"].is_array() {
            walk(&row["c"], ops, headings);
        }
    }
}

fn rows(html: &str) -> (Vec<u64>, Vec<String>) {
    let (mut ops, mut headings) = (vec![], vec![]);
    walk(&data(html)["rows"], &mut ops, &mut headings);
    ops.sort_unstable();
    (ops, headings)
}

fn count(program: &Program) -> u64 {
    program.blocks().iter().map(|block| block.ops.len() as u64).sum()
}

/// A chain of operators over variables with these names.
fn named(names: &[&str]) -> Program {
    let mut program = Program::new();
    let vars: Vec<_> = names.iter().map(|name| program.var(name)).collect();
    for var in &vars {
        program.root_mut().vars.insert(*var, VarDesc::new(DType::F32, Dims::from([4])));
    }
    for pair in vars.windows(2) {
        program.root_mut().ops.push(OpDesc::new("unlinked").input("X", [pair[0]]).output("Out", [pair[1]]));
    }
    program
}

#[test]
fn every_operator_has_one_place() -> Result<()> {
    for program in
        [digits([16, 8], 0.1)?.program, gpt(3)?.program, lstm()?.program, chain(30)?.program, Program::new()]
    {
        let html = program.to_html()?;
        assert_eq!(data(&html)["ops"].as_array().unwrap().len() as u64, count(&program));
        assert_eq!(rows(&html).0, (0..count(&program)).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn gradient_operator_shares_the_row_of_its_forward_operator() -> Result<()> {
    let html = digits([16, 8], 0.1)?.program.to_html()?;
    let data = data(&html);
    let ty = |op: &Value| {
        data["texts"][data["ops"][op.as_u64().unwrap() as usize]["t"].as_u64().unwrap() as usize].as_str()
    };
    let types: Vec<_> = data["rows"].as_array().unwrap()[..2]
        .iter()
        .map(|row| (ty(&row["o"]).unwrap(), ty(&row["r"][0]).unwrap()))
        .collect();
    assert_eq!(types, [("matmul_v2", "matmul_v2_grad"), ("elementwise_add", "elementwise_add_grad")]);
    Ok(())
}

#[test]
fn equal_layers_and_updates_fold() -> Result<()> {
    let (_, headings) = rows(&gpt(3)?.program.to_html()?);
    assert!(headings.contains(&"3 × 22 operators, from layer_norm".to_string()), "{headings:?}");
    assert!(headings.contains(&"2 of 3".to_string()), "{headings:?}");
    assert!(headings.iter().any(|heading| heading.ends_with("× adam")), "{headings:?}");
    Ok(())
}

#[test]
fn operators_of_modules_fold() -> Result<()> {
    let mut program = gpt(3)?.program;
    let ops = &mut program.root_mut().ops;
    let first = ops.iter().position(|op| &*op.ty == "layer_norm").unwrap();
    for (i, op) in ops[first..][..3 * 22].iter_mut().enumerate() {
        let module = if i % 22 < 2 { "norm" } else { "attention" };
        op.site = Some(Site::Loaded(Name::new(&format!("node `/gpt/body/layers.{}/{module}/Add`", i / 22))));
    }
    let (_, headings) = rows(&program.to_html()?);
    let layer = |i: usize| [format!("layers.{i}"), "norm".into(), "attention".into()];
    let expected: Vec<String> = std::iter::once("gpt/body".into()).chain((0..3).flat_map(layer)).collect();
    assert_eq!(headings[..expected.len()], expected);
    Ok(())
}

#[test]
fn explanations_match_explain() -> Result<()> {
    let program = lstm()?.program;
    let data = data(&program.to_html()?);
    let text = |list: &str, id: &Value| data[list][id.as_u64().unwrap() as usize].as_str().unwrap();
    let stories = data["stories"].as_array().unwrap();
    assert!(stories.len() > 20);
    for story in stories {
        let lines: Vec<_> = story[1].as_array().unwrap().iter().map(|line| text("texts", line)).collect();
        assert_eq!(lines.join("\n"), explain(&program, text("names", &story[0]))?);
    }
    Ok(())
}

#[test]
fn names_cannot_leave_the_data() -> Result<()> {
    let names =
        ["</script><script>alert(1)</script>", "<!--", "a\"b\u{0}\n\u{2028}", "{{script}}", "\u{202e}"];
    let program = named(&names);
    let html = Page::new(&program).title("</title>\"&").to_html()?;
    assert_eq!(html.matches("<script").count(), 2);
    assert_eq!(html.matches("</script").count(), 2);
    assert!(html.contains("<title>&lt;/title&gt;&quot;&amp;</title>"));
    let read = data(&html);
    assert_eq!(read["title"], "</title>\"&");
    assert_eq!(read["names"].as_array().unwrap(), &names.map(Value::from));
    Ok(())
}

#[test]
fn policy_allows_the_own_script_and_style_alone() -> Result<()> {
    let html = Program::new().to_html()?;
    let policy = between(&html, "Content-Security-Policy\" content=\"", "\"");
    let hash = |text: &str| {
        let digest = hmac_sha256::Hash::hash(text.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        hex
    };
    let allowed: Vec<String> = ["script-src", "style-src"]
        .map(|kind| hex_of_base64(between(policy, &format!("{kind} 'sha256-"), "'")))
        .into();
    assert_eq!(
        allowed,
        [hash(between(&html, "<script>", "</script>")), hash(between(&html, "<style>", "</style>"))]
    );
    assert!(policy.starts_with("default-src 'none'; "));
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        let own = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(outside), "{outside}");
    }
    Ok(())
}

fn hex_of_base64(text: &str) -> String {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter_map(|c| digits.bytes().position(|digit| digit == c));
    let bits: String = digits.map(|digit| format!("{digit:06b}")).collect();
    let bytes = bits.as_bytes().chunks_exact(8);
    bytes
        .map(|byte| format!("{:02x}", u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap()))
        .collect()
}

#[test]
fn malformed_blocks_are_errors() {
    let program = || {
        let mut program = named(&["x", "y"]);
        let block = program.add_block(Some(BlockId::ROOT), None);
        (program, block)
    };
    let refused = |program: &Program, text: &str| {
        for e in [Page::new(program).to_html(), Page::new(&Program::new()).compare_with(program).to_html()] {
            let e = e.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Program);
            assert!(e.to_string().contains(text), "{e}");
        }
    };
    let (mut cyclic, block) = program();
    cyclic.block_mut(block).unwrap().parent = Some(block);
    refused(&cyclic, "block 1: its parent is not a block before it");
    let (mut cyclic, block) = program();
    cyclic.block_mut(block).unwrap().ops.push(OpDesc::new("while").attr("sub_block", Attr::Block(block)));
    refused(&cyclic, "block 1 is not nested in block 1");
    let (mut missing, _) = program();
    let (mut other, _) = program();
    missing
        .root_mut()
        .ops
        .push(OpDesc::new("while").attr("sub_block", Attr::Block(other.add_block(None, None))));
    refused(&missing, "there is no block 2");
    let (mut own, block) = program();
    own.block_mut(block).unwrap().forward = Some(block);
    refused(&own, "block 1 cannot be the gradient of block 1");
}

#[test]
fn forged_origins_are_shown() -> Result<()> {
    use autobwd::program::Origin;
    let mut program = named(&["a", "b", "c", "d", "e", "f", "g"]);
    let (one, two) =
        (program.add_block(Some(BlockId::ROOT), None), program.add_block(Some(BlockId::ROOT), None));
    let ops = &mut program.root_mut().ops;
    ops[0].origin = Origin::Gradient { of: 1 };
    ops[1].origin = Origin::Gradient { of: 0 };
    ops[2].origin = Origin::Gradient { of: 1000 };
    ops[3].origin = Origin::Seed;
    ops[4].origin = Origin::Kept;
    ops[5].origin = Origin::Recompute { of: 5 };
    // Each is the gradient of the other.
    for (block, forward) in [(one, two), (two, one)] {
        let block = program.block_mut(block).unwrap();
        block.forward = Some(forward);
        block.ops.push(OpDesc::new("tanh"));
    }
    assert_eq!(rows(&program.to_html()?).0, (0..8).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn deep_blocks_are_shown() -> Result<()> {
    let mut program = named(&["x", "y"]);
    let mut block = BlockId::ROOT;
    for _ in 0..32 {
        let inner = program.add_block(Some(block), None);
        program
            .block_mut(block)
            .unwrap()
            .ops
            .push(OpDesc::new("while").attr("sub_block", Attr::Block(inner)));
        block = inner;
    }
    program.block_mut(block).unwrap().ops.push(OpDesc::new("tanh"));
    assert_eq!(rows(&program.to_html()?).0.len(), 34);
    Ok(())
}

#[test]
fn page_has_a_plan_or_the_reason_for_none() -> Result<()> {
    let model = digits([16, 8], 0.1)?;
    let memory = |program: &Program, feeds: &[(&str, Meta)]| -> Result<(Value, Value)> {
        let read = data(&Page::new(program).feeds(feeds).to_html()?);
        Ok((read["memory"].clone(), read["no_memory"].clone()))
    };
    let (plan, reason) = memory(&model.program, &model.feeds)?;
    assert!(reason.is_null());
    let buffers = plan["buffers"].as_array().unwrap();
    let instructions = plan["instructions"].as_array().unwrap();
    let live = |at: u64| -> u64 {
        let bounds = |b: &&Value| b[3].as_u64().unwrap() <= at && at <= b[4].as_u64().unwrap();
        buffers.iter().filter(bounds).map(|b| b[1].as_u64().unwrap()).sum()
    };
    assert_eq!((0..=instructions.len() as u64).map(live).max(), plan["peak"].as_u64());
    assert!(instructions.iter().all(|ops| !ops.as_array().unwrap().is_empty()));

    let (plan, reason) = memory(&named(&["x", "y"]), &[])?;
    assert!(plan.is_null());
    assert!(reason.as_str().unwrap().contains("unlinked"), "{reason}");
    Ok(())
}

#[test]
fn differences_are_marked() -> Result<()> {
    let (old, new) = (digits([16, 8], 0.1)?.program, digits([16, 12], 0.1)?.program);
    let statuses = |old: &Program, new: &Program| -> Result<Vec<u64>> {
        let html = Page::new(new).compare_with(old).to_html()?;
        let ops = data(&html)["ops"].as_array().unwrap().len() as u64;
        assert_eq!(rows(&html).0, (0..ops).collect::<Vec<_>>());
        let mut counts = vec![0; 5];
        for op in data(&html)["ops"].as_array().unwrap() {
            counts[op["d"].as_u64().unwrap_or(0) as usize] += 1;
        }
        Ok(counts)
    };
    assert_eq!(statuses(&old, &old)?, [count(&old), 0, 0, 0, 0]);
    let [_, 0, 0, changed, 0] = statuses(&old, &new)?[..] else { panic!("operators were added or removed") };
    assert!(changed > 0);
    let mut less = old.clone();
    less.root_mut().ops.drain(3..5);
    assert_eq!(statuses(&less, &old)?, [count(&less), 2, 0, 0, 0]);
    let [_, 0, 2, _, 0] = statuses(&old, &less)?[..] else { panic!("two operators are gone") };
    let other = lstm()?.program;
    let [_, _, removed, _, _] = statuses(&other, &old)?[..] else { panic!("five counts") };
    assert!(removed > 0);
    let mut turned = old.clone();
    let last = turned.root().ops.len() - 1;
    turned.root_mut().ops.swap(last - 1, last);
    assert_eq!(statuses(&turned, &old)?, [count(&old) - 1, 0, 0, 0, 1]);
    assert_eq!(statuses(&Program::new(), &old)?, [0, count(&old), 0, 0, 0]);
    Ok(())
}

#[test]
fn pages_are_small() -> Result<()> {
    let model = gpt(12)?;
    assert!(count(&model.program) > 532);
    let html = Page::new(&model.program).feeds(&model.feeds).to_html()?;
    assert!(html.len() <= 1_000_000, "{} bytes", html.len());
    let script = between(&html, "<script>", "</script>");
    assert!(script.len() <= 60_000, "{} bytes", script.len());
    Ok(())
}
