//! `jepsen-lite list`: what there is to choose from.

use jepsen_lite_core::schedule::Fault;
use jepsen_lite_core::verdict::Verdict;
use jepsen_lite_workload::generate::Layer;
use jepsen_lite_workload::scenarios;

const LAYERS: [Layer; 3] = [Layer::Simulation, Layer::Processes, Layer::Containers];

pub(crate) fn run() -> Verdict {
    println!("Scenarios:");
    for name in scenarios::names() {
        // They are a part of this program, and its tests have read each.
        let about = scenarios::by_name(name).map(|schedule| schedule.about);
        println!("  {name:<32} {}", about.unwrap_or_default());
    }
    println!("\nWorkloads:");
    for name in jepsen_lite_workload::NAMES {
        println!("  {name}");
    }
    println!("\nFaults, and the layers that know them:");
    for fault in Fault::of_each_kind() {
        let layers = LAYERS.into_iter().filter(|layer| layer.knows(&fault));
        let layers: Vec<&str> = layers.map(Layer::name).collect();
        println!("  {:<32} {}", fault.name(), layers.join(" "));
    }
    Verdict::Valid
}
