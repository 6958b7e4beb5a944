"""habitat-lab plays given actions and scores them with its own measures; started by a test.

    stdin   {"folder", "scene", "body": {...}, "success_m", "episodes": [{"start", "goals",
            "actions"}]}
    stdout  one line of JSON: [{"distance_to_goal", "success", "spl", "collisions", "positions"}]

Runs in the interpreter that has habitat-sim and habitat-lab. Positions are float64 text of the
agent's place at the start and after every action.
"""

import gzip
import json
import os
import sys


def main():
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # habitat prints
    os.chdir(asked["folder"])
    os.makedirs("data", exist_ok=True)  # without an environment map, which takes half a minute
    with open("data/default.pbr_config.json", "w") as file:
        json.dump(
            {"enable_ibl": False, "ibl_blut_filename": "none", "ibl_envmap_filename": "none"}, file
        )
    import habitat
    from habitat.config.default import get_config

    body = asked["body"]
    with gzip.open("episodes.json.gz", "wt") as file:
        json.dump({"episodes": list(map(episode_of, range(10**9), asked["episodes"]))}, file)
    agent = "habitat.simulator.agents.main_agent"
    config = get_config(
        "benchmark/nav/pointnav/pointnav_base.yaml",
        overrides=[
            "+habitat/dataset/pointnav=habitat_test",
            f"habitat.dataset.data_path={asked['folder']}/episodes.json.gz",
            f"habitat.dataset.scenes_dir={asked['folder']}",
            f"habitat.simulator.forward_step_size={body['step_m']}",
            f"habitat.simulator.turn_angle={round(body['turn_deg'])}",
            f"habitat.simulator.habitat_sim_v0.allow_sliding={body['is_sliding']}",
            "habitat.simulator.habitat_sim_v0.gpu_device_id=-1",
            f"{agent}.radius={body['radius_m']}",
            f"{agent}.height={body['height_m']}",
            f"{agent}.sim_sensors.rgb_sensor.width=16",
            f"{agent}.sim_sensors.rgb_sensor.height=16",
            f"{agent}.sim_sensors.depth_sensor.width=16",
            f"{agent}.sim_sensors.depth_sensor.height=16",
            "+habitat/task/measurements=[distance_to_goal,success,spl,collisions]",
            f"habitat.task.measurements.success.success_distance={asked['success_m']}",
            "habitat.environment.iterator_options.shuffle=False",
            "habitat.environment.max_episode_steps=100000",
        ],
    )
    results = {}
    with habitat.Env(config=config) as env:
        for _ in asked["episodes"]:
            env.reset()
            actions = asked["episodes"][int(env.current_episode.episode_id)]["actions"]
            positions = [place(env)]
            for action in actions:
                env.step({"action": ACTIONS[action]})
                positions.append(place(env))
            results[int(env.current_episode.episode_id)] = {
                **{key: float(env.get_metrics()[key]) for key in MEASURES},
                "collisions": env.get_metrics()["collisions"]["count"],
                "positions": positions,
            }
    print(json.dumps([results[index] for index in sorted(results)]), file=answer, flush=True)


MEASURES = ("distance_to_goal", "success", "spl")
ACTIONS = ("stop", "move_forward", "turn_left", "turn_right")


def episode_of(index, asked):
    return {
        "episode_id": str(index),
        "scene_id": asked["scene"],
        "start_position": asked["start"][:3],
        "start_rotation": asked["start"][3:],
        "info": {},
        "goals": [{"position": goal, "radius": None} for goal in asked["goals"]],
        "shortest_paths": None,
        "start_room": None,
    }


def place(env):
    return [float(value) for value in env.sim.get_agent_state().position]


if __name__ == "__main__":
    main()
