use autobwd::op::LaneEntry;

fn main() {
    let _: Option<LaneEntry> = None;
}
